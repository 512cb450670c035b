"""The methods: each answers at most three questions (plan, weigh, remix)."""
