"""The endpoints, one file for each kind; every file offers `routes(service)`."""
