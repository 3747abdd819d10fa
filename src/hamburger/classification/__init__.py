"""Image classification: data, networks, training, evaluation and prediction."""
