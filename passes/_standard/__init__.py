"""The helpers of `nest-to-scf`: layers in standard dialects."""
