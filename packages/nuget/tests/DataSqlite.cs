// A connection of Microsoft.Data.Sqlite, for .NET.
using System;
using Microsoft.Data.Sqlite;

sealed class Connection : IDisposable
{
    readonly SqliteConnection db;

    public Connection(string file)
    {
        db = new SqliteConnection("Data Source=" + file);
        db.Open();
    }

    public static void Load()
    {
        using (var any = new Connection(":memory:"))
        {
            // As LoadExtension does, which versions before 3.0 lack.
            any.db.EnableExtensions(true);
            using (var load = any.db.CreateCommand())
            {
                load.CommandText = "SELECT load_extension($library, $entry)";
                load.Parameters.AddWithValue("$library", Onewrite.Library);
                load.Parameters.AddWithValue("$entry", Onewrite.Entry);
                load.ExecuteNonQuery();
            }
        }
    }

    public void Run(string sql, bool prints)
    {
        using (var command = db.CreateCommand())
        {
            command.CommandText = sql;
            command.CommandTimeout = 60;
            using (var rows = command.ExecuteReader())
            {
                while (rows.Read())
                {
                    var row = new object[rows.FieldCount];
                    rows.GetValues(row);
                    if (prints) Console.WriteLine(string.Join(" ", row));
                }
            }
        }
    }

    public void Dispose() => db.Dispose();
}
