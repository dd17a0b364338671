import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

# For this example alone: a site sets its own key and hosts.
SECRET_KEY = os.environ.get("SECRET_KEY", "only-for-the-example")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]

INSTALLED_APPS = ["notes"]
ROOT_URLCONF = "notes.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {
        "ENGINE": "onewrite.django",
        "NAME": os.environ.get("DATABASE", BASE_DIR / "notes.db"),
        "OPTIONS": {"onewrite": {"log_size": "8m"}},
    }
}
