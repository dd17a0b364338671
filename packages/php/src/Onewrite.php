<?php

declare(strict_types=1);

namespace Onewrite;

/** Loads the library into the SQLite that PHP is linked to, and opens databases through it. */
final class Onewrite
{
    /** Name of the library in the directory that `sqlite3.extension_dir` names. */
    public const LIBRARY = 'libonewrite.so';

    private const CANNOT_OPEN = 'unable to open database';

    /**
     * SQLite's messages for errors that files have. Of others, as of wrong SQL, the message tells all, and the last reason is an older
     * one's.
     */
    private const OF_A_FILE = [
        self::CANNOT_OPEN, 'attempt to write a readonly database', 'database disk image is malformed', 'database is locked',
        'database or disk is full', 'disk I/O error', 'file is not a database',
    ];

    /**
     * Makes the VFS known, once a process; with $default it becomes that of every database opened without naming one. PHP
     * calls an extension by its first entry point only, which asks the environment.
     */
    public static function load(bool $default = false): void
    {
        static $loaded = [];
        if (isset($loaded[$default])) {
            return;
        }
        $before = getenv('ONEWRITE_DEFAULT');
        if ($default) {
            putenv('ONEWRITE_DEFAULT=1');
        }
        (new \SQLite3(':memory:'))->loadExtension(self::LIBRARY);
        if ($default) {
            putenv($before === false ? 'ONEWRITE_DEFAULT' : "ONEWRITE_DEFAULT=$before");
        }
        $loaded[$default] = true;
    }

    /** The URI that opens a file through onewrite, with settings such as ['log_size' => '8m']. */
    public static function uri(string $path, array $settings = []): string
    {
        $escaped = implode('/', array_map('rawurlencode', explode('/', $path)));
        return "file:$escaped?" . http_build_query(['vfs' => 'onewrite'] + $settings);
    }

    /** A database of the class PDO. The message of an open that fails has onewrite's reason. */
    public static function pdo(string $path, array $settings = [], array $options = []): \PDO
    {
        self::load();
        return self::explain(function () use ($path, $settings, $options): \PDO {
            $flags = [\PDO::SQLITE_ATTR_OPEN_FLAGS => \PDO::SQLITE_OPEN_READWRITE | \PDO::SQLITE_OPEN_CREATE | 0x40];
            $db = new \PDO('sqlite:' . self::uri($path, $settings), null, null, $options + $flags);
            self::checkOpen($db);
            return $db;
        });
    }

    /**
     * SQLite looks into a file with the first statement, which may find that it cannot be opened: its log is missing, for one. Any
     * other error is that statement's, and a file that is in use is not waited for.
     */
    private static function checkOpen(\PDO $db): void
    {
        $mode = $db->getAttribute(\PDO::ATTR_ERRMODE);
        $db->setAttribute(\PDO::ATTR_ERRMODE, \PDO::ERRMODE_EXCEPTION);
        $waitsMs = (int) $db->query('PRAGMA busy_timeout')->fetchColumn();
        try {
            $db->exec('PRAGMA busy_timeout=0');
            $db->query('PRAGMA schema_version')->fetchColumn();
        } catch (\PDOException $e) {
            if (str_contains($e->getMessage(), self::CANNOT_OPEN)) {
                throw $e;
            }
        } finally {
            $db->exec("PRAGMA busy_timeout=$waitsMs");
            $db->setAttribute(\PDO::ATTR_ERRMODE, $mode);
        }
    }

    /**
     * Calls, and adds onewrite's reason to the message of an error: `Onewrite::explain(fn() => $db->exec($sql))`. An exception stays the
     * same object. A warning, which the class SQLite3 gives where it throws no exceptions, becomes one of the level E_USER_WARNING.
     */
    public static function explain(callable $call): mixed
    {
        $before = set_error_handler(function (int $level, string $said, string $file, int $line) use (&$before): bool {
            $explained = self::withReason($said);
            if ($before !== null) {
                return $before($level, $explained, $file, $line) !== false;
            }
            return $explained !== $said && (error_reporting() & $level) !== 0 && trigger_error($explained, E_USER_WARNING);
        }, E_WARNING);
        try {
            return $call();
        } catch (\Exception $e) {
            (new \ReflectionProperty(\Exception::class, 'message'))->setValue($e, self::withReason($e->getMessage()));
            throw $e;
        } finally {
            restore_error_handler();
        }
    }

    /** The message of an error of a file, with onewrite's reason if it lacks that; every other one as it is. */
    private static function withReason(string $said): string
    {
        $isOfAFile = array_filter(self::OF_A_FILE, fn(string $text): bool => str_contains($said, $text)) !== [];
        $why = $isOfAFile ? self::lastError() : null;
        return $why === null || str_contains($said, $why) ? $said : "$said: $why";
    }

    /** What went wrong in onewrite's last failed call on this thread; null if the last error was not onewrite's. */
    public static function lastError(): ?string
    {
        return @(new \SQLite3(':memory:'))->querySingle('SELECT onewrite_last_error()') ?: null; // not loaded: false
    }
}
