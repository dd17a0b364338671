ENV["BUNDLE_GEMFILE"] ||= File.expand_path("../Gemfile", __dir__)
# Without a Gemfile.lock the gems of the system serve.
require "bundler/setup" if File.exist?("#{ENV["BUNDLE_GEMFILE"]}.lock")
