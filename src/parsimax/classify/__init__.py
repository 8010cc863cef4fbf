"""Text classifiers with attention: the models that audits look into."""
