"""An activity -> bucket, role, rule, origin."""
