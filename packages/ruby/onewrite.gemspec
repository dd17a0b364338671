Gem::Specification.new do |gem|
  gem.name = "onewrite"
  gem.version = ENV.fetch("ONEWRITE_VERSION")
  gem.platform = ENV.fetch("ONEWRITE_GEM_PLATFORM")
  gem.summary = "Durable SQLite commits with one block write and one flush"
  gem.description = "Loads the onewrite VFS into the SQLite of the sqlite3 gem, with and without ActiveRecord."
  gem.authors = ["onewrite maintainers"]
  gem.licenses = ["MIT", "Apache-2.0"]
  gem.files = ["lib/onewrite.rb", "lib/libonewrite.so", "README.md", "LICENSE-MIT", "LICENSE-APACHE"]
  gem.required_ruby_version = ">= 2.7"
  gem.homepage = "https://onewrite.invalid"
end
