// The worker of packages/testing/drill.py, in C#, over one of two connections: Native.cs or DataSqlite.cs.
using System;

static class Worker
{
    static int Main(string[] given)
    {
        string what = given[0], file = given[1];
        if (what == "stock")
        {
            using (var stock = new Connection(file))
            {
                stock.Run("PRAGMA integrity_check", true);
                stock.Run("SELECT count(*) FROM t", true);
            }
            return 0;
        }
        Connection.Load();
        if (what == "wrong")
        {
            try { new Connection(Onewrite.DataSource(file, ("logsize", "8m"))).Dispose(); }
            catch (Exception)
            {
                using (var asks = new Connection(":memory:")) asks.Run("SELECT onewrite_last_error()", true);
            }
            return 0;
        }
        using (var db = new Connection(Onewrite.DataSource(file))) Work(db, given);
        return 0;
    }

    static void Work(Connection db, string[] given)
    {
        if (given[0] == "read")
        {
            db.Run("SELECT writer, count(*), max(n) FROM t GROUP BY writer", true);
            return;
        }
        db.Run("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)", false);
        if (given[0] == "status")
        {
            db.Run("PRAGMA journal_mode=WAL", false);
            db.Run("INSERT INTO t VALUES ('status', 0)", false);
            db.Run("SELECT onewrite_status()", true);
            db.Run("SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'", true);
            return;
        }
        for (int n = 0; n < int.Parse(given[3]); n++)
        {
            db.Run($"INSERT INTO t VALUES ('{given[2]}', {n})", false);
            Console.WriteLine(n);
        }
    }
}
