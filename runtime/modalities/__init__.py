"""What bundles take and give: one file per modality, and the table of them."""
