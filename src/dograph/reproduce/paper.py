"""The paper's numbers as printed, each with the label of its table or figure in the paper.

Methods have our labels: `dograph-paper` is the paper's DoGraph. Where the numbers contradict each
other or the paper's text: docs/reproduce.md.
"""

# The paper's three groups of tasks, in the order of its columns.
REASONING = ("hellaswag", "piqa", "openbookqa", "copa", "logiqa", "winogrande")
READING = ("sciq", "arc_easy")
LANGUAGE = ("lambada_openai",)
TASKS = (*REASONING, *READING, *LANGUAGE)

NAMES = {
    "uniform": "Uniform",
    "dynamic-loss": "Dynamic Loss-Based",
    "doremi": "DoReMi",
    "doge": "DOGE",
    "regmix": "RegMix",
    "mixing-law": "Data Mixing Law",
    "dograph-paper": "DoGraph (Ours)",
}
OURS = "dograph-paper"  # the paper's own method

# Accuracies in per cent: nine tasks, and the printed average.
DOWNSTREAM = {
    "gpt2-medium": {  # tab:benchmark_joint
        "uniform": (26.1, 55.5, 11.7, 58.0, 25.7, 49.9, 49.0, 31.4, 11.6, 35.4),
        "dynamic-loss": (26.6, 56.8, 13.8, 59.0, 29.8, 50.1, 53.3, 31.7, 13.4, 37.2),
        "doremi": (26.4, 55.7, 12.2, 59.0, 27.2, 49.9, 53.3, 32.3, 12.7, 36.5),
        "doge": (26.2, 55.8, 11.5, 62.0, 27.2, 50.4, 52.8, 31.3, 11.6, 36.5),
        "regmix": (26.1, 55.6, 13.2, 60.0, 23.7, 50.0, 46.6, 31.7, 14.0, 35.7),
        "mixing-law": (26.5, 54.5, 13.0, 62.0, 24.4, 49.1, 45.2, 32.0, 12.0, 35.4),
        "dograph-paper": (27.3, 56.9, 14.8, 63.0, 26.3, 50.8, 53.5, 33.9, 14.5, 37.9),
    },
    "llama-1.1b": {  # tab:benchmark_joint_1
        "uniform": (29.5, 58.8, 27.3, 65.8, 23.9, 50.5, 60.3, 40.0, 11.7, 40.9),
        "dynamic-loss": (29.0, 57.7, 26.4, 64.3, 22.8, 49.3, 60.0, 38.9, 10.2, 39.9),
        "doremi": (29.4, 58.3, 27.3, 67.5, 26.4, 52.2, 61.6, 40.6, 12.1, 41.7),
        "doge": (29.2, 58.5, 27.1, 64.5, 23.2, 49.8, 60.1, 40.0, 11.7, 40.5),
        "regmix": (29.2, 59.3, 27.3, 65.2, 25.8, 53.1, 62.8, 41.7, 14.2, 42.1),
        "mixing-law": (29.2, 58.8, 26.9, 67.2, 23.6, 50.4, 58.6, 39.0, 11.9, 40.6),
        "dograph-paper": (29.8, 59.2, 27.8, 65.0, 28.3, 51.2, 66.1, 39.2, 15.9, 42.5),
    },
    "llama-3.2-3b": {  # tab:benchmark_joint_2
        "uniform": (29.6, 58.8, 29.4, 66.0, 25.9, 51.1, 61.0, 39.1, 12.6, 41.5),
        "dynamic-loss": (29.3, 58.1, 29.6, 66.1, 25.0, 52.5, 62.7, 39.9, 12.2, 41.7),
        "doremi": (29.6, 58.4, 29.8, 66.0, 24.9, 51.4, 61.1, 40.5, 12.8, 41.6),
        "doge": (29.7, 56.9, 29.2, 64.0, 25.5, 50.6, 61.7, 40.6, 11.9, 41.1),
        "regmix": (29.4, 59.5, 29.4, 66.5, 25.1, 53.6, 62.5, 41.2, 12.3, 42.2),
        "mixing-law": (29.3, 58.4, 30.2, 65.9, 25.6, 51.3, 61.3, 40.2, 12.1, 41.6),
        "dograph-paper": (29.6, 60.5, 29.0, 67.0, 29.7, 51.4, 65.2, 40.2, 15.1, 43.1),
    },
    "gpt2-small": {  # tab:benchmark_joint_3
        "uniform": (26.0, 55.4, 13.8, 57.2, 22.8, 49.3, 32.6, 30.6, 12.0, 33.3),
        "dynamic-loss": (26.2, 56.1, 13.2, 55.3, 26.0, 49.2, 53.8, 31.8, 12.6, 36.2),
        "doremi": (26.1, 55.7, 12.3, 53.5, 26.8, 48.8, 52.4, 30.9, 12.4, 35.4),
        "doge": (26.2, 55.0, 14.4, 60.5, 23.5, 49.0, 31.1, 30.8, 11.4, 33.5),
        "regmix": (26.0, 54.3, 13.3, 58.0, 24.1, 49.8, 38.7, 29.8, 12.5, 34.1),
        "mixing-law": (26.1, 56.3, 13.4, 59.2, 24.5, 48.9, 39.6, 30.1, 12.4, 34.5),
        "dograph-paper": (26.3, 57.5, 14.6, 58.0, 26.0, 49.7, 53.8, 32.3, 12.8, 36.4),
    },
}
MODELS = dict(
    zip(DOWNSTREAM, ("GPT-2 Medium", "LLaMA-1.1B", "LLaMA-3.2-3B", "GPT-2 Small"), strict=True)
)
AVERAGE = "average"  # of the tasks


# tab:pretrain_results, printed as perplexity, but in nats.
VALIDATION_LOSS = {
    "uniform": 4.13,
    "dynamic-loss": 3.10,
    "doremi": 3.30,
    "doge": 3.31,
    "regmix": 4.51,
    "mixing-law": 4.50,
    "dograph-paper": 3.09,
}

# tab:opt_objectives: complexity, and loss (printed as perplexity).
OBJECTIVES = {
    "variance": ("O(m^2)", 3.24),
    "robust": ("O(m)", 3.31),
    "alignment": ("O(m^2)", 3.15),
    "uncertainty": ("O(m^2)", 3.09),
}

# fig:cluster_granularity and its section: a U shape with its minimum at 11.
NUM_DOMAINS = (7, 9, 11, 13, 15)
BEST_NUM_DOMAINS = 11

# fig:efficiency_h200 and its section.
HOURS = 20.37  # pre-training with DoGraph on two H200
OVER_REGMIX = 4.51  # time above RegMix, in per cent
BUDGET_TOKENS = 100e9
