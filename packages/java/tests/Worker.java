// The worker of packages/testing/drill.py, in Java, over a pool of HikariCP's where it writes.
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.*;
import java.util.Map;
import onewrite.Onewrite;

public class Worker {
    static void lines(Connection db, String sql) throws SQLException {
        try (ResultSet rows = db.createStatement().executeQuery(sql)) {
            int columns = rows.getMetaData().getColumnCount();
            while (rows.next()) {
                for (int i = 1; i <= columns; i++) System.out.print(rows.getString(i) + (i < columns ? " " : "\n"));
            }
        }
    }

    public static void main(String[] given) throws Exception {
        String what = given[0], file = given[1];
        if (what.equals("stock")) {
            try (Connection db = DriverManager.getConnection("jdbc:sqlite:" + file)) {
                lines(db, "PRAGMA integrity_check");
                lines(db, "SELECT count(*) FROM t");
            }
            return;
        }
        Onewrite.load();
        if (what.equals("wrong")) {
            try {
                Onewrite.open(file, Map.of("logsize", "8m"));
            } catch (SQLException e) {
                System.out.println(e.getMessage());
            }
            return;
        }
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(Onewrite.url(file) + "&busy_timeout=60000");
        config.setMaximumPoolSize(2);
        try (HikariDataSource pool = new HikariDataSource(config); Connection db = pool.getConnection()) {
            if (what.equals("read")) {
                lines(db, "SELECT writer, count(*), max(n) FROM t GROUP BY writer");
                return;
            }
            db.createStatement().execute("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)");
            if (what.equals("status")) {
                db.createStatement().execute("PRAGMA journal_mode=WAL");
                db.createStatement().execute("INSERT INTO t VALUES ('status', 0)");
                lines(db, "SELECT onewrite_status()");
                lines(db, "SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'");
                return;
            }
            PreparedStatement insert = db.prepareStatement("INSERT INTO t VALUES (?, ?)");
            for (int n = 0; n < Integer.parseInt(given[3]); n++) {
                insert.setString(1, given[2]);
                insert.setInt(2, n);
                insert.execute();
                System.out.println(n);
                System.out.flush();
            }
        }
    }
}
