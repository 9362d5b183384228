"""Where metrics go: metrics.jsonl, CSV, TensorBoard, Weights & Biases, and the terminal."""
