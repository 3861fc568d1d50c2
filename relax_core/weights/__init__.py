"""Publications of weights: what they consist of, who counts their versions, whether they arrived."""
