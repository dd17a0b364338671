<?php
// The worker of packages/testing/drill.py, in PHP: writes through PDO, reads through SQLite3.
use Onewrite\Onewrite;

require getenv('ONEWRITE_PHP') . '/src/Onewrite.php';
[, $what, $file] = $argv;
if ($what === 'stock') {
    $db = new PDO("sqlite:$file");
    echo $db->query('PRAGMA integrity_check')->fetchColumn(), "\n", $db->query('SELECT count(*) FROM t')->fetchColumn(), "\n";
} elseif ($what === 'wrong') {
    try {
        Onewrite::pdo($file, ['logsize' => '8m']);
    } catch (RuntimeException $e) {
        echo $e->getMessage(), "\n";
    }
} elseif ($what === 'read') {
    Onewrite::load(default: true);
    $db = new SQLite3($file);
    if (!str_starts_with($db->querySingle('SELECT onewrite_status()'), 'in_effect=yes')) {
        exit('SQLite3 is not served');
    }
    $rows = $db->query('SELECT writer, count(*), max(n) FROM t GROUP BY writer');
    while ($row = $rows->fetchArray(SQLITE3_NUM)) {
        echo implode(' ', $row), "\n";
    }
} else {
    $db = Onewrite::pdo($file, [], [PDO::ATTR_TIMEOUT => 60]);
    $db->exec('CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)');
    if ($what === 'status') {
        $db->exec('PRAGMA journal_mode=WAL');
        $db->exec("INSERT INTO t VALUES ('status', 0)");
        echo $db->query('SELECT onewrite_status()')->fetchColumn(), "\n";
        echo $db->query("SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'")->fetchColumn(), "\n";
    } else {
        $insert = $db->prepare('INSERT INTO t VALUES (?, ?)');
        for ($n = 0; $n < (int) $argv[4]; $n++) {
            $insert->execute([$argv[3], $n]);
            fwrite(STDOUT, "$n\n");
        }
    }
}
