"""Private parts of Dynamo: frames, guards, traced graphs and configuration."""
