"""The search space: knobs, declared once and composed."""
