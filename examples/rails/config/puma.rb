bind "tcp://127.0.0.1:#{ENV.fetch("PORT", 8000)}"
# Processes instead of threads: sqlite3 before 2.0 waits for a lock without letting other Ruby threads run.
workers 2
threads 1, 1
