"""Stand-ins and stages that several test folders use."""
