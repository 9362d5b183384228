"""What is made of a trained agent: exports, videos, inspections, datasets."""
