"""Models of other families changed in their structure."""
