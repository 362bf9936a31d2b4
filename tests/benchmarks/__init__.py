"""What capture costs, measured on steps that stay as they are."""
