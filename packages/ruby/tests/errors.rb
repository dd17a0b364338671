# Errors with onewrite's reasons: of an open, of a statement, and of a program that names no VFS.
require "onewrite"
require "tmpdir"

def error_of(kind)
  yield
  raise "no error"
rescue kind => e
  e
end

def require_that(truth, error)
  raise "#{error.class}: #{error.message}" unless truth
end

Dir.mktmpdir do |dir|
  raise "a reason without the library" unless Onewrite.last_error.nil?

  Dir.mkdir("#{dir}/folder")
  error = error_of(Onewrite::Error) { Onewrite.open("#{dir}/folder") }
  require_that(error.message.include?("Is a directory"), error)

  db = Onewrite.open("#{dir}/x.db")
  db.execute("CREATE TABLE t(a)")
  File.rename("#{dir}/x.db", "#{dir}/y.db")
  File.write("#{dir}/x.db", "")
  error = error_of(SQLite3::ReadOnlyException) { 1000.times { Onewrite.explain { db.execute("INSERT INTO t VALUES (1)") } } }
  require_that(error.message.match?(/\Aattempt to write a readonly database: .*x\.db/), error)
  again = error_of(SQLite3::ReadOnlyException) { Onewrite.explain { Onewrite.explain { raise error } } }
  require_that(again.message == error.message, again)

  # As ActiveRecord raises it.
  wrapped = error_of(ArgumentError) do
    Onewrite.explain do
      db.execute("INSERT INTO t VALUES (1)")
    rescue SQLite3::Exception
      raise ArgumentError, "not saved"
    end
  end
  require_that(wrapped.message.match?(/\Anot saved: .*x\.db/), wrapped)

  wrong = error_of(SQLite3::SQLException) { Onewrite.explain { db.execute("SELECT * FROM no_such") } }
  require_that(wrong.message.start_with?("no such table: no_such") && !wrong.message.include?("x.db"), wrong)
  raise "no value" unless Onewrite.explain { 7 } == 7

  # The log is missing, which the first statement finds.
  db.close
  lost = "#{dir}/lost.db"
  pid = fork do
    killed = Onewrite.open(lost)
    killed.execute("CREATE TABLE t(a)")
    Process.kill(:KILL, Process.pid)
  end
  Process.wait(pid)
  File.delete("#{lost}-onewrite")
  error = error_of(Onewrite::Error) { Onewrite.open(lost) }
  require_that(error.message.include?("lost.db-onewrite is missing"), error)
end
puts "ok: errors with their reasons"
