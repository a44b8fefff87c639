"""What stands between a site and who asks it: approval, a budget, each question answered once, an audit file."""
