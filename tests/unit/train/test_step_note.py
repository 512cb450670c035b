"""What a run says of itself while it goes on."""

from dograph.train.metrics import step_note

ROW = {"train/loss_nats": 3.14159, "time/tokens_per_second": 12345.6}


def test_loss_and_speed():
    assert step_note(ROW) == "loss 3.142  12,346 tokens/s"


def test_domains_that_have_samples_and_how_evenly_they_weigh():
    domains = {"domains/samples": [5.0, 0.0, 1.0], "domains/weight": [0.9, 0.0, 0.1]}
    row = ROW | domains | {"weights/entropy_nats": 0.456}
    assert step_note(row) == "loss 3.142  12,346 tokens/s  2 domains, entropy 0.46"
