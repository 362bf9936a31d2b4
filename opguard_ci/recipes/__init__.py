"""The recipes that ship with the package: five small trainings that use most of what training code uses."""
