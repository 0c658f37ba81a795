"""What building the book needs of us: the Sphinx extension, the build and serve commands, the notebook tools."""
