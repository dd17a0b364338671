// The worker of packages/testing/drill.py, in C#, over the system's SQLite.
using System;
using System.Runtime.InteropServices;
using System.Text;

static class Worker
{
    const string Sqlite = "libsqlite3.so.0";
    const int Row = 100, Done = 101, ReadWriteCreateUri = 0x46, LoadExtensions = 1005;

    [DllImport(Sqlite)] static extern int sqlite3_open_v2(byte[] file, out IntPtr db, int flags, IntPtr vfs);
    [DllImport(Sqlite)] static extern int sqlite3_db_config(IntPtr db, int what, int on, IntPtr was);
    [DllImport(Sqlite)] static extern int sqlite3_load_extension(IntPtr db, byte[] file, byte[] entry, out IntPtr message);
    [DllImport(Sqlite)] static extern int sqlite3_busy_timeout(IntPtr db, int milliseconds);
    [DllImport(Sqlite)] static extern int sqlite3_prepare_v2(IntPtr db, byte[] sql, int bytes, out IntPtr statement, IntPtr tail);
    [DllImport(Sqlite)] static extern int sqlite3_step(IntPtr statement);
    [DllImport(Sqlite)] static extern int sqlite3_finalize(IntPtr statement);
    [DllImport(Sqlite)] static extern int sqlite3_column_count(IntPtr statement);
    [DllImport(Sqlite)] static extern IntPtr sqlite3_column_text(IntPtr statement, int column);
    [DllImport(Sqlite)] static extern IntPtr sqlite3_errmsg(IntPtr db);
    [DllImport(Sqlite)] static extern int sqlite3_close(IntPtr db);

    static byte[] Utf8(string text) => Encoding.UTF8.GetBytes(text + "\0");

    static void Check(int code, IntPtr db)
    {
        if (code != 0 && code != Row && code != Done) throw new Exception(Marshal.PtrToStringAnsi(sqlite3_errmsg(db)));
    }

    static IntPtr Open(string file)
    {
        int code = sqlite3_open_v2(Utf8(file), out IntPtr db, ReadWriteCreateUri, IntPtr.Zero);
        Check(code, db);
        sqlite3_busy_timeout(db, 60000);
        return db;
    }

    static void Run(IntPtr db, string sql, bool prints)
    {
        Check(sqlite3_prepare_v2(db, Utf8(sql), -1, out IntPtr statement, IntPtr.Zero), db);
        int code;
        while ((code = sqlite3_step(statement)) == Row)
        {
            var row = new string[sqlite3_column_count(statement)];
            for (int i = 0; i < row.Length; i++) row[i] = Marshal.PtrToStringAnsi(sqlite3_column_text(statement, i));
            if (prints) Console.WriteLine(string.Join(" ", row));
        }
        sqlite3_finalize(statement);
        Check(code, db);
    }

    static void Load()
    {
        IntPtr db = Open(":memory:");
        Check(sqlite3_db_config(db, LoadExtensions, 1, IntPtr.Zero), db);
        if (sqlite3_load_extension(db, Utf8(Onewrite.Library), Utf8(Onewrite.Entry), out IntPtr message) != 0)
            throw new Exception(Marshal.PtrToStringAnsi(message));
        sqlite3_close(db);
    }

    static int Main(string[] given)
    {
        string what = given[0], file = given[1];
        if (what == "stock")
        {
            IntPtr stock = Open(file);
            Run(stock, "PRAGMA integrity_check", true);
            Run(stock, "SELECT count(*) FROM t", true);
            sqlite3_close(stock);
            return 0;
        }
        Load();
        if (what == "wrong")
        {
            try { Open(Onewrite.DataSource(file, ("logsize", "8m"))); }
            catch (Exception)
            {
                IntPtr asks = Open(":memory:");
                Run(asks, "SELECT onewrite_last_error()", true);
            }
            return 0;
        }
        IntPtr db = Open(Onewrite.DataSource(file));
        if (what == "read") Run(db, "SELECT writer, count(*), max(n) FROM t GROUP BY writer", true);
        else
        {
            Run(db, "CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)", false);
            if (what == "status")
            {
                Run(db, "PRAGMA journal_mode=WAL", false);
                Run(db, "INSERT INTO t VALUES ('status', 0)", false);
                Run(db, "SELECT onewrite_status()", true);
                Run(db, "SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'", true);
            }
            else for (int n = 0; n < int.Parse(given[3]); n++)
            {
                Run(db, $"INSERT INTO t VALUES ('{given[2]}', {n})", false);
                Console.WriteLine(n);
            }
        }
        sqlite3_close(db);
        return 0;
    }
}
