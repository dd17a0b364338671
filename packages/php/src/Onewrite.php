<?php

declare(strict_types=1);

namespace Onewrite;

/** Loads the library into the SQLite that PHP is linked to, and opens databases through it. */
final class Onewrite
{
    /** Name of the library in the directory that `sqlite3.extension_dir` names. */
    public const LIBRARY = 'libonewrite.so';

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

    /** A database of the class PDO. */
    public static function pdo(string $path, array $settings = [], array $options = []): \PDO
    {
        self::load();
        try {
            $flags = [\PDO::SQLITE_ATTR_OPEN_FLAGS => \PDO::SQLITE_OPEN_READWRITE | \PDO::SQLITE_OPEN_CREATE | 0x40];
            return new \PDO('sqlite:' . self::uri($path, $settings), null, null, $options + $flags);
        } catch (\PDOException $e) {
            throw new \RuntimeException(implode(': ', array_filter([$e->getMessage(), self::lastError()])), 0, $e);
        }
    }

    /** What went wrong in onewrite's last failed call on this thread; null if the last error was not onewrite's. */
    public static function lastError(): ?string
    {
        return (new \SQLite3(':memory:'))->querySingle('SELECT onewrite_last_error()');
    }
}
