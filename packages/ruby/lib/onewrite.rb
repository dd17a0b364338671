# onewrite for Ruby: getting the library into the SQLite of the sqlite3 gem, and names that open through it.
require "sqlite3"
require "erb"

module Onewrite
  # An open that failed, with what onewrite says about it.
  class Error < SQLite3::CantOpenException; end

  ENTRY = "sqlite3_onewrite_init".freeze
  DEFAULT_ENTRY = "sqlite3_onewrite_default_init".freeze

  module_function

  # The file that SQLite loads.
  def loadable_path
    File.expand_path("libonewrite.so", __dir__)
  end

  # Loads the library, once a process; with `default: true` every database that names no VFS is opened through it from now on.
  def load(db = nil, default: false)
    loader = db || SQLite3::Database.new(":memory:")
    loader.enable_load_extension(true)
    loader.execute("SELECT load_extension(?, ?)", [loadable_path, default ? DEFAULT_ENTRY : ENTRY])
  ensure
    loader&.enable_load_extension(false)
    loader.close if loader && db.nil?
  end

  # The URI that opens a file through onewrite: `Onewrite.uri("app.db", log_size: "8m")`.
  def uri(path, **settings)
    escaped = path.split("/", -1).map { |part| ERB::Util.url_encode(part) }.join("/")
    query = { vfs: "onewrite", **settings }.map { |key, value| "#{key}=#{ERB::Util.url_encode(value.to_s)}" }.join("&")
    "file:#{escaped}?#{query}"
  end

  # Opens a database through onewrite.
  def open(path, options = {}, **settings)
    load
    SQLite3::Database.new(uri(path, **settings), options)
  rescue SQLite3::CantOpenException => e
    raise Error, [e.message, last_error].compact.join(": ")
  end

  # What went wrong in onewrite's last failed call on this thread; nil if the last error was not onewrite's.
  def last_error
    db = SQLite3::Database.new(":memory:")
    db.get_first_value("SELECT onewrite_last_error()")
  ensure
    db&.close
  end
end
