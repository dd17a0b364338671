require "rails"
require "active_record/railtie"
require "action_controller/railtie"
require "onewrite"

# Before the first connection: config/database.yml names the database by `Onewrite.uri`.
Onewrite.load

module Notes
  class Application < Rails::Application
    config.load_defaults 6.1
    config.api_only = true
    config.eager_load = true
    config.consider_all_requests_local = false
    config.logger = ActiveSupport::Logger.new($stderr)
    config.log_level = :warn
    # For this example alone: a site sets its own.
    config.secret_key_base = ENV.fetch("SECRET_KEY_BASE", "only-for-the-example")
  end
end
