package onewrite;

import java.io.IOException;
import java.io.InputStream;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.Stream;

/** Makes the VFS "onewrite" known to the SQLite that sqlite-jdbc brings, and builds URLs that open databases through it. */
public final class Onewrite {
    private static final String ENTRY = "sqlite3_onewrite_init";
    private static final String DEFAULT_ENTRY = "sqlite3_onewrite_default_init";
    /** BUSY, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, NOTADB. Of others, as of wrong SQL, SQLite's message tells all. */
    private static final Set<Integer> OF_A_FILE = Set.of(5, 8, 10, 11, 13, 14, 26);
    private static Path library;

    private Onewrite() {}

    /** Loads the library, once a process. Databases whose URL names no VFS stay stock SQLite's. */
    public static synchronized void load() throws SQLException {
        load(ENTRY);
    }

    /** Loads the library, and makes onewrite the VFS of every database whose URL names none. */
    public static synchronized void loadDefault() throws SQLException {
        load(DEFAULT_ENTRY);
    }

    /** The URL of a database opened through onewrite, with settings such as {@code Map.of("log_size", "8m")}. */
    public static String url(String file, Map<String, String> settings) {
        StringBuilder url = new StringBuilder("jdbc:sqlite:file:");
        url.append(file.replace("%", "%25").replace("?", "%3f").replace("#", "%23")).append("?vfs=onewrite");
        settings.forEach((key, value) ->
            url.append('&').append(key).append('=').append(URLEncoder.encode(value, StandardCharsets.UTF_8)));
        return url.toString();
    }

    public static String url(String file) {
        return url(file, Map.of());
    }

    /** Opens a database through onewrite, with settings. The message of an open that fails has onewrite's reason. */
    public static Connection open(String file, Map<String, String> settings) throws SQLException {
        load();
        return explain(() -> {
            Connection db = DriverManager.getConnection(url(file, settings));
            // SQLite looks into the file with the first statement.
            try (Statement first = db.createStatement()) {
                first.executeQuery("PRAGMA schema_version").close();
                return db;
            } catch (SQLException e) {
                db.close();
                throw e;
            }
        });
    }

    public static Connection open(String file) throws SQLException {
        return open(file, Map.of());
    }

    /** A call that may fail. */
    @FunctionalInterface
    public interface Call<T> {
        T call() throws SQLException;
    }

    /** Calls, and adds onewrite's reason to the message of an error: {@code Onewrite.explain(() -> statement.executeUpdate(sql))}. */
    public static <T> T explain(Call<T> call) throws SQLException {
        try {
            return call.call();
        } catch (SQLException e) {
            String why = OF_A_FILE.contains(e.getErrorCode() & 0xff) ? lastError() : null;
            if (why == null || e.getMessage().contains(why)) {
                throw e;
            }
            throw new SQLException(e.getMessage() + ": " + why, e.getSQLState(), e.getErrorCode(), e);
        }
    }

    /** What went wrong in onewrite's last failed call on this thread; null if the last error was not onewrite's. */
    public static String lastError() throws SQLException {
        try (Connection db = DriverManager.getConnection("jdbc:sqlite::memory:");
                var answer = db.createStatement().executeQuery("SELECT onewrite_last_error()")) {
            return answer.next() ? answer.getString(1) : null;
        }
    }

    private static void load(String entry) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("enable_load_extension", "true");
        try (Connection db = DriverManager.getConnection("jdbc:sqlite::memory:", properties);
                PreparedStatement load = db.prepareStatement("SELECT load_extension(?, ?)")) {
            load.setString(1, library().toString());
            load.setString(2, entry);
            load.execute();
        } catch (IOException e) {
            throw new SQLException("onewrite: the library cannot be unpacked: " + e, e);
        }
    }

    /** The library in a file: a system property names one, else it is unpacked from the jar. */
    private static Path library() throws IOException {
        if (library == null) {
            String named = System.getProperty("onewrite.library");
            library = named != null ? Path.of(named) : unpack();
        }
        return library;
    }

    /** Whether this process runs on musl, which a machine with glibc may have as well. */
    private static boolean onMusl() throws IOException {
        try (Stream<String> mapped = Files.lines(Path.of("/proc/self/maps"))) {
            return mapped.anyMatch(line -> line.contains("/ld-musl-") || line.contains("/libc.musl-"));
        }
    }

    private static Path unpack() throws IOException {
        String machine = System.getProperty("os.arch").equals("amd64") ? "x86_64" : System.getProperty("os.arch");
        String system = System.getProperty("os.name");
        String suffix = system.startsWith("Windows") ? ".dll" : system.startsWith("Mac") ? ".dylib" : ".so";
        String of = suffix.equals(".dll") ? "windows" : suffix.equals(".dylib") ? "macos" : onMusl() ? "musl" : "gnu";
        String name = "native/libonewrite-" + machine + "-" + of + suffix;
        try (InputStream in = Onewrite.class.getResourceAsStream(name)) {
            if (in == null) {
                throw new IOException("the jar has no " + name);
            }
            Path file = Files.createTempFile("libonewrite-", suffix);
            Files.copy(in, file, StandardCopyOption.REPLACE_EXISTING);
            file.toFile().deleteOnExit();
            return file;
        }
    }
}
