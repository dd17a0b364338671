require_relative "boot"
require_relative "application"

Rails.application.initialize!
