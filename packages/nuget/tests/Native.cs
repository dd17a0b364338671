// A connection of the system's SQLite, for Mono.
using System;
using System.Runtime.InteropServices;
using System.Text;

sealed class Connection : IDisposable
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

    readonly IntPtr db;

    public Connection(string file)
    {
        Check(sqlite3_open_v2(Utf8(file), out db, ReadWriteCreateUri, IntPtr.Zero));
        sqlite3_busy_timeout(db, 60000);
    }

    public static void Load()
    {
        using (var any = new Connection(":memory:"))
        {
            any.Check(sqlite3_db_config(any.db, LoadExtensions, 1, IntPtr.Zero));
            if (sqlite3_load_extension(any.db, Utf8(Onewrite.Library), Utf8(Onewrite.Entry), out IntPtr message) != 0)
                throw new Exception(Marshal.PtrToStringAnsi(message));
        }
    }

    public void Run(string sql, bool prints)
    {
        Check(sqlite3_prepare_v2(db, Utf8(sql), -1, out IntPtr statement, IntPtr.Zero));
        int code;
        while ((code = sqlite3_step(statement)) == Row)
        {
            var row = new string[sqlite3_column_count(statement)];
            for (int i = 0; i < row.Length; i++) row[i] = Marshal.PtrToStringAnsi(sqlite3_column_text(statement, i));
            if (prints) Console.WriteLine(string.Join(" ", row));
        }
        sqlite3_finalize(statement);
        Check(code);
    }

    public void Dispose() => sqlite3_close(db);

    void Check(int code)
    {
        if (code != 0 && code != Row && code != Done) throw new Exception(Marshal.PtrToStringAnsi(sqlite3_errmsg(db)));
    }
}
