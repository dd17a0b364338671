# The worker of packages/testing/drill.py, in Ruby.
require "onewrite"
what, file, writer, count = ARGV
$stdout.sync = true
case what
when "stock"
  db = SQLite3::Database.new(file)
  puts db.get_first_value("PRAGMA integrity_check"), db.get_first_value("SELECT count(*) FROM t")
when "wrong"
  begin
    Onewrite.open(file, logsize: "8m")
  rescue Onewrite::Error => e
    puts e.message
  end
else
  db = Onewrite.open(file)
  db.busy_timeout = 60_000
  if what == "read"
    db.execute("SELECT writer, count(*), max(n) FROM t GROUP BY writer") { |row| puts row.join(" ") }
  else
    db.execute("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)")
    if what == "status"
      db.execute("PRAGMA journal_mode=WAL")
      db.execute("INSERT INTO t VALUES ('status', 0)")
      puts db.get_first_value("SELECT onewrite_status()")
      puts db.get_first_value("SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'")
    else
      count.to_i.times do |n|
        db.execute("INSERT INTO t VALUES (?, ?)", [writer, n])
        puts n
      end
    end
  end
  db.close
end
