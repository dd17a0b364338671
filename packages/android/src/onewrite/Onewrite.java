package onewrite;

import java.io.UnsupportedEncodingException;
import java.net.URLEncoder;
import java.util.Collections;
import java.util.Map;

/** Names for a SQLite that loads extensions. The one of Android's own SQLiteDatabase loads none. */
public final class Onewrite {
    /** The library of this package, for the loader of the system. */
    public static final String LIBRARY = "libonewrite.so";
    /** Entry point: makes the VFS known to the process. Databases whose name asks for no VFS stay stock SQLite's. */
    public static final String ENTRY = "sqlite3_onewrite_init";
    /** Entry point: makes onewrite the VFS of every database that is opened afterwards and asks for none, too. */
    public static final String DEFAULT_ENTRY = "sqlite3_onewrite_default_init";

    private Onewrite() {}

    /** The URI that opens a file through onewrite, for an open with SQLITE_OPEN_URI. */
    public static String uri(String path) {
        return uri(path, Collections.<String, String>emptyMap());
    }

    /** The same with settings, such as {@code Collections.singletonMap("log_size", "8m")}. */
    public static String uri(String path, Map<String, String> settings) {
        StringBuilder uri = new StringBuilder("file:");
        uri.append(path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")).append("?vfs=onewrite");
        for (Map.Entry<String, String> setting : settings.entrySet()) {
            uri.append('&').append(setting.getKey()).append('=').append(encoded(setting.getValue()));
        }
        return uri.toString();
    }

    private static String encoded(String value) {
        try {
            // A blank is a plus in a form, not in a URI.
            return URLEncoder.encode(value, "UTF-8").replace("+", "%20");
        } catch (UnsupportedEncodingException impossible) {
            throw new AssertionError(impossible);
        }
    }
}
