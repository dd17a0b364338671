# onewrite for Ruby: getting the library into the SQLite of the sqlite3 gem, and names that open through it.
require "sqlite3"
require "erb"

module Onewrite
  # An open that failed, with what onewrite says about it.
  class Error < SQLite3::CantOpenException; end

  ENTRY = "sqlite3_onewrite_init".freeze
  DEFAULT_ENTRY = "sqlite3_onewrite_default_init".freeze

  # Errors that files have. Of others, as of wrong SQL, SQLite's message tells all, and the last reason is an older one's.
  OF_A_FILE = [
    SQLite3::BusyException, SQLite3::CantOpenException, SQLite3::CorruptException, SQLite3::FullException, SQLite3::IOException,
    SQLite3::NotADatabaseException, SQLite3::ReadOnlyException
  ].freeze
  private_constant :OF_A_FILE

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
    db = SQLite3::Database.new(uri(path, **settings), options)
    check_open(db)
    db
  rescue SQLite3::CantOpenException => e
    db&.close
    raise Error, with_reason(e)
  end

  # Adds onewrite's reason to the message of an error: `Onewrite.explain { db.execute(sql) }`. The error keeps its class. One that
  # another library raised because of SQLite's, as ActiveRecord does, is explained too.
  def explain
    yield
  rescue StandardError => e
    of_sqlite = e
    of_sqlite = of_sqlite.cause until of_sqlite.nil? || of_sqlite.is_a?(SQLite3::Exception)
    explained = OF_A_FILE.any? { |kind| of_sqlite.is_a?(kind) } ? with_reason(e) : e.to_s
    raise if explained == e.to_s
    raise e.exception(explained)
  end

  # The text of an error, with onewrite's reason if it lacks that.
  def with_reason(error)
    why = last_error
    why.nil? || error.message.include?(why) ? error.to_s : "#{error}: #{why}"
  end
  private_class_method :with_reason

  # SQLite looks into a file with the first statement, which may find that it cannot be opened: its log is missing, for one. Any other
  # error is that statement's, and no busy timeout is set yet, so that a file in use is not waited for.
  def check_open(db)
    db.get_first_value("PRAGMA schema_version")
  rescue SQLite3::CantOpenException
    raise
  rescue SQLite3::Exception
    nil
  end
  private_class_method :check_open

  # What went wrong in onewrite's last failed call on this thread; nil if the last error was not onewrite's.
  def last_error
    db = SQLite3::Database.new(":memory:")
    db.get_first_value("SELECT onewrite_last_error()")
  rescue SQLite3::SQLException
    nil # the library is not loaded
  ensure
    db&.close
  end
end
