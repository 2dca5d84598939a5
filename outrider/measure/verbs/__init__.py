"""What each verb that measures does, and its flags."""
