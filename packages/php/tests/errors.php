<?php
// Errors with onewrite's reasons: of an open, of a statement of PDO, and of the class SQLite3 with and without exceptions.
use Onewrite\Onewrite;

require getenv('ONEWRITE_PHP') . '/src/Onewrite.php';

function fail(string $why): never
{
    echo debug_backtrace()[1]['line'] ?? debug_backtrace()[0]['line'], ": $why\n";
    exit(1);
}

function messageOf(string $class, callable $call): string
{
    try {
        $call();
    } catch (Exception $e) {
        $e instanceof $class || fail(get_class($e) . ': ' . $e->getMessage());
        return $e->getMessage();
    }
    fail("no error");
}

function requireMatch(string $pattern, string $message): void
{
    preg_match($pattern, $message) === 1 || fail("$message\n    is not $pattern");
}

/** Another file takes the name of an open database, so that its next writes are errors. */
function replaceFile(string $path): void
{
    rename($path, "$path.moved");
    touch($path);
}

function insertOften(callable $insert): void
{
    for ($n = 0; $n < 1000; $n++) {
        Onewrite::explain($insert);
    }
}

[, $what, $dir] = $argv;
$lost = "$dir/lost.db";
if ($what === 'killed') {
    $db = Onewrite::pdo($lost);
    $db->exec('CREATE TABLE t(a)');
    exec('kill -9 ' . getmypid());
}
exec(implode(' ', array_map('escapeshellarg', [PHP_BINARY, '-d', 'sqlite3.extension_dir=' . ini_get('sqlite3.extension_dir'), __FILE__, 'killed', $dir])) . ' 2>/dev/null');
unlink("$lost-onewrite");
Onewrite::lastError() === null || fail("a reason without the library");
mkdir("$dir/folder");
requireMatch('/Is a directory/', messageOf(PDOException::class, fn() => Onewrite::pdo("$dir/folder")));
requireMatch('/lost.db-onewrite is missing/', messageOf(PDOException::class, fn() => Onewrite::pdo($lost)));

$db = Onewrite::pdo("$dir/x.db", [], [PDO::ATTR_TIMEOUT => 7, PDO::ATTR_ERRMODE => PDO::ERRMODE_SILENT]);
$db->query('PRAGMA busy_timeout')->fetchColumn() === 7000 || fail("the timeout is another");
$db->query('SELECT * FROM no_such') === false || fail("the error mode is another");
$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$db->exec('CREATE TABLE t(a)');
replaceFile("$dir/x.db");
$insert = fn() => $db->exec('INSERT INTO t VALUES (1)');
$said = messageOf(PDOException::class, fn() => insertOften($insert));
requireMatch('/attempt to write a readonly database: .*x\.db/', $said);
messageOf(PDOException::class, fn() => Onewrite::explain(fn() => Onewrite::explain($insert))) === $said || fail("explained twice");
requireMatch('/no such table: no_such$/', messageOf(PDOException::class, fn() => Onewrite::explain(fn() => $db->query('SELECT * FROM no_such'))));
Onewrite::explain(fn() => 7) === 7 || fail("no value");

Onewrite::load(default: true);
$db = new SQLite3("$dir/z.db");
$db->exec('CREATE TABLE t(a)');
replaceFile("$dir/z.db");
$warnings = [];
set_error_handler(function (int $level, string $said) use (&$warnings): bool {
    $warnings[] = $said;
    return true;
});
insertOften(fn() => $db->exec('INSERT INTO t VALUES (1)'));
restore_error_handler();
requireMatch('/^SQLite3::exec\(\): attempt to write a readonly database: .*z\.db/', end($warnings) ?: '');
// Without a handler of the program's own, PHP prints it.
ob_start();
ini_set('display_errors', '1');
ini_set('log_errors', '0');
Onewrite::explain(fn() => $db->exec('INSERT INTO t VALUES (1)'));
requireMatch('/Warning: SQLite3::exec\(\): attempt to write a readonly database: .*z\.db/', ob_get_clean());
Onewrite::explain(fn() => @$db->exec('INSERT INTO t VALUES (1)'));
$db->enableExceptions(true);
requireMatch('/attempt to write a readonly database: .*z\.db/', messageOf(Exception::class, fn() => Onewrite::explain(fn() => $db->exec('INSERT INTO t VALUES (1)'))));
echo "ok: errors with their reasons\n";
