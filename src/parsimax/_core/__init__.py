"""What every layer shares: validation, masks, dtypes, backends and records. Imports torch only."""
