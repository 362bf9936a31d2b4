"""The pytest plugin of opguard_ci: recipes are tests, and ordinary tests can be guarded by a fixture."""
