# ActiveRecord over onewrite, by URI and as the default.
require "onewrite"
require "active_record"
require "tmpdir"

Dir.mktmpdir do |dir|
  Onewrite.load
  [Onewrite.uri("#{dir}/a.db"), "#{dir}/b.db"].each do |database|
    Onewrite.load(default: true) unless database.start_with?("file:")
    ActiveRecord::Base.establish_connection(adapter: "sqlite3", database: database, timeout: 5000)
    ActiveRecord::Schema.verbose = false
    ActiveRecord::Schema.define { create_table(:notes) { |t| t.string :text } }
    model = Class.new(ActiveRecord::Base) { self.table_name = "notes" }
    model.transaction { model.create!(text: "durable") }
    begin
      model.transaction { model.create!(text: "gone"); raise ActiveRecord::Rollback }
    end
    # What Rails 7.1 and newer ask of every connection.
    mode = ActiveRecord::Base.connection.select_value("PRAGMA journal_mode=WAL")
    raise "journal_mode=#{mode}" unless mode == "wal"
    status = ActiveRecord::Base.connection.select_value("SELECT onewrite_status()")
    raise "not in effect: #{status}" unless status.start_with?("in_effect=yes")
    raise "rows: #{model.pluck(:text)}" unless model.pluck(:text) == ["durable"]
    ActiveRecord::Base.remove_connection
  end
  raise "no database in the file" unless File.exist?("#{dir}/a.db") && File.exist?("#{dir}/b.db")
end
puts "ok: ActiveRecord #{ActiveRecord.version}"
