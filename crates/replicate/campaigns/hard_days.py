#!/usr/bin/env python3
"""Hard days of a store, each for the same time, at once: commits wait for the store (--sync), and behind each day the store alone must
have every acknowledged commit, and no other history. On the days `away`, `burst` and `many` they do not wait, and the shipper ends first.

Wants target/release/onewrite-replicate and libonewrite.so (`cargo build --release -p onewrite -p onewrite-replicate`), and sqlite3 with
extensions. The day `full` mounts small file systems and wants root; `clock` wants libfaketime. A day that cannot be had is said."""

import argparse
import concurrent.futures
import email.utils
import glob
import hashlib
import http.server
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

PROGRAM = 'onewrite-replicate'


class Skipped(Exception):
    """A day that cannot be had on this machine."""


class Bucket(http.server.ThreadingHTTPServer):
    """A server of S3, with one bucket, or another door to the bucket of one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, of=None):
        super().__init__(('127.0.0.1', 0), Request)
        self.objects = of.objects if of else {}
        self.lock = of.lock if of else threading.Lock()
        # Of a request: None, or (status, headers, whether it is done all the same); status 0 closes the connection.
        self.fault = lambda request: None
        self.requests = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass

    def url(self, path):
        return f's3://bucket/{path}?region=here&endpoint=http%3A%2F%2F127.0.0.1%3A{self.server_port}'


class Request(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def handle_any(self):
        parts = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        self.key = urllib.parse.unquote(parts.path).removeprefix('/bucket').lstrip('/')
        length = int(self.headers.get('content-length') or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            # Its sender has ended: half a file is none.
            self.close_connection = True
            return
        self.server.requests += 1
        fault = self.server.fault(self)
        if fault is None or fault[2]:
            answer = self.answer(body)
        if fault is not None:
            if fault[0] == 0:
                self.close_connection = True
                return
            answer = (fault[0], fault[1], b'<Error><Code>Fault</Code></Error>')
        status, headers, body = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != 'HEAD' or 'content-length' not in headers:
            self.send_header('content-length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_DELETE = handle_any

    def answer(self, body):
        def error(status, code):
            return status, {}, f'<Error><Code>{code}</Code></Error>'.encode()

        objects = self.server.objects
        with self.server.lock:
            there = objects.get(self.key)
            if self.command == 'PUT':
                matches = self.headers.get('if-match')
                if matches and not there:
                    return error(404, 'NoSuchKey')
                if matches and there[1] != matches or self.headers.get('if-none-match') and there:
                    return error(412, 'PreconditionFailed')
                kept = {name: value for name, value in self.headers.items() if name.lower().startswith('x-amz-meta-')}
                etag = f'"{hashlib.md5(body).hexdigest()}"'
                objects[self.key] = (body, etag, kept, time.time())
                return 200, {'etag': etag}, b''
            if self.command == 'DELETE':
                objects.pop(self.key, None)
                return 204, {}, b''
            if not self.key:
                return 200, {}, self.listing().encode()
        if not there:
            return error(404, 'NoSuchKey')
        body, etag, kept, made = there
        headers = {'etag': etag, 'last-modified': email.utils.formatdate(made, usegmt=True), **kept}
        if self.command == 'HEAD':
            return 200, {**headers, 'content-length': str(len(body))}, b''
        if 'range' in self.headers:
            first, last = self.headers['range'].removeprefix('bytes=').split('-')
            part = body[int(first):int(last) + 1]
            if not part:
                return error(416, 'InvalidRange')
            return 206, {**headers, 'content-range': f'bytes {first}-{int(first) + len(part) - 1}/{len(body)}'}, part
        return 200, headers, body

    def listing(self):
        prefix, after = self.query.get('prefix', ''), self.query.get('continuation-token', self.query.get('start-after', ''))
        keys = sorted(key for key in self.server.objects if key.startswith(prefix) and key > after)
        page = keys[:1000]
        text = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        for key in page:
            body, etag, _, made = self.server.objects[key]
            at = time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(made))
            text += f'<Contents><Key>{key}</Key><LastModified>{at}</LastModified><ETag>{etag}</ETag><Size>{len(body)}</Size></Contents>'
        text += f'<IsTruncated>{str(len(keys) > 1000).lower()}</IsTruncated>'
        if len(keys) > 1000:
            text += f'<NextContinuationToken>{page[-1]}</NextContinuationToken>'
        return text + '</ListBucketResult>'


class Writer:
    """A program with the database open through onewrite: SQLite's shell."""

    def __init__(self, day, file):
        self.shell = subprocess.Popen(
            ['sqlite3'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
        day.processes.append(self.shell)
        self.ask(f".load {day.built / 'libonewrite'}\n.open 'file:{file}?vfs=onewrite'\nPRAGMA busy_timeout=60000;")
        self.ask('CREATE TABLE IF NOT EXISTS t(k INTEGER PRIMARY KEY, x);')

    def ask(self, text):
        """The lines of an answer; `None` where the shell has ended."""
        try:
            self.shell.stdin.write(f"{text}\nSELECT 'end of answer';\n")
            lines = []
            for line in self.shell.stdout:
                if line.strip() == 'end of answer':
                    return lines
                lines.append(line.strip())
        except OSError:
            pass
        return None

    def commit(self, k, size):
        """Whether row k is acknowledged."""
        return self.ask(f'INSERT OR REPLACE INTO t VALUES ({k}, randomblob({size}));') == []


class Day:
    def __init__(self, args, name, top):
        self.args, self.name, self.dir = args, name, pathlib.Path(top) / name
        self.dir.mkdir()
        self.built = pathlib.Path(args.built).resolve()
        self.processes, self.acknowledged, self.tried = [], set(), set()
        self.refused, self.worst, self.env = 0, 0.0, dict(os.environ)
        self.env.update(AWS_ACCESS_KEY_ID='key', AWS_SECRET_ACCESS_KEY='secret', AWS_EC2_METADATA_DISABLED='true')
        self.rng = random.Random(f'{args.seed} {name}')
        self.end = float('inf')

    def program(self, *args, log=None, env=None):
        out = open(self.dir / log, 'ab') if log else subprocess.PIPE
        process = subprocess.Popen([self.built / PROGRAM, *map(str, args)], stdout=out, stderr=out, env=env or self.env)
        self.processes.append(process)
        return process

    def run(self, *args, env=None, seconds=120):
        """Exit status and output; a program that does not end is a failure."""
        process = self.program(*args, env=env)
        said, errors = process.communicate(timeout=seconds)
        return process.returncode, (said + errors).decode(errors='replace')

    def ships(self, file, url, *more, env=None, log='log'):
        """A shipper for which commits wait, and the wait until they do."""
        return self.starts(b'commits w', '--sync', '--ship-timeout', '30s', *more, file, url, log=log, env=env)

    def starts(self, word, *args, log='log', env=None):
        """A shipper, and the wait until it has said the word."""
        (self.dir / log).touch()
        had = (self.dir / log).stat().st_size
        shipper = self.program('replicate', *args, log=log, env=env)
        begun = time.monotonic()
        while word not in (self.dir / log).read_bytes()[had:]:
            assert shipper.poll() is None and time.monotonic() < begun + 300, f'{self.name}: no beginning: {self.told(log)}'
            time.sleep(0.05)
        # The day begins with the first one.
        self.end = min(self.end, time.monotonic() + self.args.seconds)
        return shipper

    def told(self, log='log'):
        return (self.dir / log).read_text(errors='replace')[-2000:]

    def commits(self, writer, until, pause=0.02, sizes=(50, 50, 50, 3000, 60000)):
        """Commits until that time; a row that is not acknowledged is tried again."""
        k = max(self.tried, default=0) + 1
        while time.monotonic() < until:
            self.tried.add(k)
            begun = time.monotonic()
            if writer.commit(k, self.rng.choice(sizes)):
                self.acknowledged.add(k)
                k += 1
            else:
                assert writer.shell.poll() is None, f'{self.name}: the writer has ended'
                self.refused += 1
                time.sleep(0.2)
            self.worst = max(self.worst, time.monotonic() - begun)
            time.sleep(pause)

    def rows(self, file, in_use=False):
        text = 'PRAGMA integrity_check; SELECT k FROM t;'
        if in_use:
            text = f".load {self.built / 'libonewrite'}\n.open 'file:{file}?vfs=onewrite'\nPRAGMA query_only=1; {text}"
        check = subprocess.run(['sqlite3'] + [file] * (not in_use), input=text, capture_output=True, text=True)
        ok, *rows = check.stdout.split() or ['']
        assert ok == 'ok', f'{self.name}: {file} is damaged: {check.stdout[:300]}{check.stderr}'
        return {int(row) for row in rows}

    def restored(self, url):
        """The rows that the store alone has."""
        dest = self.dir / 'restored.db'
        dest.unlink(missing_ok=True)
        status, said = self.run('restore', '--integrity-check', 'full', url, dest, seconds=600)
        assert status == 0, f'{self.name}: no restore of {url}: {said}'
        return self.rows(dest)

    def judge(self, url):
        """The store alone has every acknowledged row, and none that was not tried."""
        rows = self.restored(url)
        assert self.acknowledged, f'{self.name}: no commit was acknowledged'
        lost, others = self.acknowledged - rows, rows - self.tried
        assert not lost and not others, f'{self.name}: lost {sorted(lost)[:9]}, others {sorted(others)[:9]}'

    def stop(self, process):
        """A signal ends a program within a second or two."""
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        took = time.monotonic() - begun
        assert took < 5, f'{self.name}: a signal took {took:.1f} s'

    def simple(self, bucket, *more, env=None):
        """Commits all day, then the machine is lost."""
        url, file = bucket.url('app'), self.dir / 'app.db'
        shipper = self.ships(file, url, *more, env=env)
        # Its first commit makes the table, over a slow store, too.
        writer = Writer(self, file)
        self.end = time.monotonic() + self.args.seconds
        self.commits(writer, self.end)
        bucket.fault = lambda request: None
        self.stop(shipper)
        self.judge(url)
        return f'{bucket.requests:,} requests'

    def slow(self):
        bucket = Bucket()
        bucket.fault = lambda request: time.sleep(1)
        return self.simple(bucket)

    def errors(self):
        bucket = Bucket()

        def fault(request):
            draw = self.rng.random()
            kinds = [(0.1, (500, {}, False)), (0.2, (503, {'retry-after': '1'}, False)), (0.25, (500, {}, True)), (0.3, (0, {}, True))]
            return next((fault for below, fault in kinds if draw < below), None)

        bucket.fault = fault
        return self.simple(bucket)

    def keys(self):
        """Keys end after 20 s, and until the evening their source is away for 10 s of each minute."""
        bucket, given, day = Bucket(), [], self

        class Source(Request):
            def handle_any(self):
                if time.monotonic() % 60 < 10 and given and time.monotonic() < day.end:
                    return self.send_error(500)
                now = time.time()
                given.append(now)
                text = json.dumps({
                    'AccessKeyId': f'KEY{len(given)}', 'SecretAccessKey': 'secret', 'Token': 'token',
                    'Expiration': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(now + 20))}).encode()
                self.send_response(200)
                self.send_header('content-length', str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = handle_any

        source = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Source)
        threading.Thread(target=source.serve_forever, daemon=True).start()

        def fault(request):
            key = request.query.get('X-Amz-Credential', 'KEY0').split('/')[0]
            is_old = time.time() > given[int(key.removeprefix('KEY')) - 1] + 20
            return (403, {}, False) if is_old else None

        bucket.fault = fault
        env = {name: value for name, value in self.env.items() if not name.startswith('AWS_')}
        env['AWS_CONTAINER_CREDENTIALS_FULL_URI'] = f'http://127.0.0.1:{source.server_port}/keys'
        self.env = env
        env['HOME'] = str(self.dir)
        said = self.simple(bucket, env=env)
        return f'{said}, {len(given)} keys'

    def clock(self):
        """The shipper's clock jumps by up to a day each few seconds."""
        found = glob.glob('/usr/lib/*/faketime/libfaketimeMT.so.1')
        if not found:
            raise Skipped('libfaketime is not installed')
        bucket, now = Bucket(), self.dir / 'now'
        now.write_text('+0')
        env = {**self.env, 'LD_PRELOAD': found[0], 'FAKETIME_TIMESTAMP_FILE': str(now), 'FAKETIME_NO_CACHE': '1',
               'FAKETIME_DONT_FAKE_MONOTONIC': '1', 'DONT_FAKE_MONOTONIC': '1'}
        jumps = []

        def jump():
            while time.monotonic() < self.end:
                time.sleep(self.rng.uniform(2, 8))
                jumps.append(self.rng.choice([-86400, -3600, -5, 0, 5, 3600, 86400]))
                now.write_text(f'{jumps[-1]:+d}')

        threading.Thread(target=jump, daemon=True).start()
        said = self.simple(bucket, '--levels', '5s,30s', '--keep-batches', '10s', env=env)
        return f'{said}, {len(jumps)} jumps'

    def full(self):
        """The disks of the database, of the store and of a standby are full for 5 s, again and again."""
        if os.geteuid() != 0:
            raise Skipped('only root mounts a file system')
        places, size = {}, f'size={64 + 2 * self.args.seconds}m'
        for name in ('database', 'store', 'standby'):
            places[name] = self.dir / name
            places[name].mkdir()
            done = subprocess.run(['mount', '-t', 'tmpfs', '-o', size, 'tmpfs', places[name]], capture_output=True)
            if done.returncode:
                raise Skipped(f'no file system can be mounted: {done.stderr.decode().strip()}')
        env = {**self.env, 'TMPDIR': str(places['database'])}
        url, file = f"file://{places['store']}/app", places['database'] / 'app.db'
        shipper = self.ships(file, url, '--levels', '5s,30s', '--keep-batches', '10s', env=env)
        writer = Writer(self, file)
        standby = self.program('follow', url, places['standby'] / 'copy.db', log='follow', env=self.env)
        fills = []

        def fill():
            while time.monotonic() < self.end - 10 or not fills:
                time.sleep(self.rng.uniform(2, 6))
                name = self.rng.choice(list(places))
                fills.append(name)
                with open(places[name] / 'filler', 'wb', buffering=0) as filler:
                    try:
                        while filler.write(bytes(1 << 20)):
                            pass
                    except OSError:
                        pass
                time.sleep(5)
                (places[name] / 'filler').unlink()

        filler = threading.Thread(target=fill)
        filler.start()
        self.commits(writer, self.end)
        filler.join()
        assert standby.poll() is None and shipper.poll() is None, f'{self.name}: {self.told()} {self.told("follow")}'
        # The standby comes to the newest state by itself.
        newest, begun = max(self.acknowledged), time.monotonic()
        while newest not in self.rows(places['standby'] / 'copy.db', in_use=True):
            assert time.monotonic() < begun + 90, f'{self.name}: the standby stands still: {self.told("follow")}'
            time.sleep(0.5)
        self.stop(standby)
        self.stop(shipper)
        self.judge(url)
        return f'{len(fills)} times full'

    def merges(self):
        """Files are merged and removed while others restore: each gets all that was acknowledged before it began."""
        bucket, restored = Bucket(), []
        url, file = bucket.url('app'), self.dir / 'app.db'
        more = ['--levels', '1s,3s', '--keep-batches', '1s', '--snapshot-interval', '5s', '--retention', '10s']
        shipper = self.ships(file, url, *more)
        writer = Writer(self, file)

        def restore(n):
            while time.monotonic() < self.end:
                before = set(self.acknowledged)
                dest = self.dir / f'copy-{n}.db'
                dest.unlink(missing_ok=True)
                status, said = self.run('restore', url, dest)
                assert status == 0, f'{self.name}: {said}'
                assert not before - self.rows(dest), f'{self.name}: restored too little'
                restored.append(n)

        with concurrent.futures.ThreadPoolExecutor() as pool:
            restores = [pool.submit(restore, n) for n in range(2)]
            self.commits(writer, self.end)
            for done in restores:
                done.result()
        self.stop(shipper)
        self.judge(url)
        return f'{len(restored)} restores meanwhile'

    def partition(self):
        """The primary cannot reach the store, another node is promoted, and the first comes back: in turns."""
        bucket = Bucket()
        doors = [Bucket(bucket), Bucket(bucket)]
        files = [self.dir / 'one.db', self.dir / 'two.db']
        shipper, turns, primary = self.ships(files[0], doors[0].url('app')), 0, 0
        writer = Writer(self, files[0])
        while True:
            self.commits(writer, min(self.end, time.monotonic() + 3), pause=0.005)
            if time.monotonic() > self.end:
                break
            other = 1 - primary
            doors[primary].fault = lambda request: (0, {}, False)
            # The first primary's writer goes on, and must have no answer that another history lacks.
            old = (writer, shipper, primary)
            stuck = max(self.tried) + 1
            self.tried.add(stuck)
            answers = []
            asks = threading.Thread(target=lambda: answers.append(old[0].commit(stuck, 50)))
            asks.start()
            files[other].unlink(missing_ok=True)
            status, said = self.run('promote', files[other], doors[other].url('app'))
            assert status == 0, f'{self.name}: no promotion: {said}'
            shipper = self.ships(files[other], doors[other].url('app'), log=f'log-{turns}')
            writer = Writer(self, files[other])
            self.commits(writer, time.monotonic() + 2, pause=0.005)
            assert answers in ([], [False]), f'{self.name}: row {stuck} was acknowledged behind the partition'
            doors[primary].fault = lambda request: None
            assert old[1].wait(timeout=60) == 3, f'{self.name}: the first shipper is not fenced: {self.told()}'
            asks.join()
            assert answers == [False], f'{self.name}: row {stuck} was acknowledged by the node that was fenced'
            old[0].shell.kill()
            primary, turns = other, turns + 1
            for path in self.dir.glob(f'{files[1 - primary].name}*'):
                path.unlink()
        self.stop(shipper)
        self.judge(bucket.url('app'))
        return f'{turns} turns'

    def unwaited(self):
        """A store, its URL, a database, its writer and its shipper, for which commits do not wait."""
        bucket, file = Bucket(), self.dir / 'app.db'
        writer, url = Writer(self, file), bucket.url('app')
        return bucket, url, file, writer, self.starts(b'shipping ', file, url)

    def away(self):
        """The store does not answer for most of the day, and commits do not wait for it."""
        bucket, url, file, writer, shipper = self.unwaited()
        begun, back = time.monotonic(), threading.Event()
        self.commits(writer, begun + self.args.seconds * 0.1)
        bucket.fault = lambda request: (back.wait(120), (0, {}, False))[1]
        self.commits(writer, begun + self.args.seconds * 0.9)
        assert shipper.poll() is None, f'{self.name}: {self.told()}'
        bucket.fault = lambda request: None
        back.set()
        returned = time.monotonic()
        while self.run('verify', file, url)[0]:
            assert time.monotonic() < returned + 120, f'{self.name}: the store lacks something: {self.told()}'
        took, memory = time.monotonic() - returned, self.memory(shipper)
        self.stop(shipper)
        self.judge(url)
        return f'the store had all within {took:.1f} s of its return; {memory}'

    def burst(self):
        """As many commits as one writer makes, and they do not wait for the store."""
        bucket, url, _, writer, shipper = self.unwaited()
        self.commits(writer, time.monotonic() + self.args.seconds, pause=0, sizes=[50])
        memory, files = self.memory(shipper), len(bucket.objects)
        assert files < 1000, f'{self.name}: {files} files are in the store'
        self.stop(shipper)
        self.judge(url)
        return f'{files} files in the store, {bucket.requests:,} requests; {memory}'

    def many(self):
        """Of a thousand databases in a directory ten are written, and commits do not wait for the store."""
        bucket, count = Bucket(), 1000 if self.args.seconds >= 60 else 50
        place, config = self.dir / 'tenants', self.dir / 'config.yml'
        place.mkdir()
        Writer(self, place / '0.db').shell.communicate()
        for n in range(1, count):
            shutil.copy(place / '0.db', place / f'{n}.db')
        replica = {'type': 's3', 'bucket': 'bucket', 'path': 'tenants', 'region': 'here',
                   'endpoint': f'http://127.0.0.1:{bucket.server_port}'}
        config.write_text(json.dumps({'dbs': [{'dir': str(place), 'pattern': '*.db', 'replica': replica}]}))
        begun = time.monotonic()
        shipper = self.starts(b'', '--config', config)
        while len({key.split('/')[1] for key in list(bucket.objects) if '/0000/' in key}) < count:
            assert shipper.poll() is None and time.monotonic() < begun + 300, f'{self.name}: {self.told()}'
            time.sleep(0.1)
        started = time.monotonic() - begun
        writers = [Writer(self, place / f'{n}.db') for n in range(10)]
        end = time.monotonic() + self.args.seconds
        while time.monotonic() < end:
            for writer in writers:
                k = len(self.tried)
                self.tried.add(k)
                if writer.commit(k, 100):
                    self.acknowledged.add(k)
            time.sleep(0.1)
        memory = self.memory(shipper)
        self.stop(shipper)
        rows = set()
        for n in list(range(10)) + self.rng.sample(range(10, count), 20):
            rows |= self.restored(bucket.url(f'tenants/{n}.db'))
        assert self.acknowledged and rows == self.acknowledged, f'{self.name}: lost {sorted(self.acknowledged - rows)[:9]}'
        return f'{count:,} databases shipped {started:.0f} s behind the start; {memory}'

    def memory(self, process):
        status = pathlib.Path(f'/proc/{process.pid}/status').read_text()
        most = next(int(line.split()[1]) for line in status.splitlines() if line.startswith('VmHWM'))
        return f'{most / 1024:.0f} MiB of memory at most'

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for path in self.dir.iterdir():
            if path.is_mount():
                subprocess.run(['umount', '-l', path], check=False)


DAYS = ['slow', 'errors', 'keys', 'clock', 'full', 'merges', 'partition', 'away', 'burst', 'many']


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=int, default=600, help='length of a day, 600')
    parser.add_argument('--seed', type=int, default=random.randrange(1 << 32), help='what is drawn; default: another one each time')
    parser.add_argument('--built', default='target/release', help='directory of the programs, target/release')
    parser.add_argument('--keep', action='store_true', help='leave the directory with databases and logs')
    parser.add_argument('days', nargs='*', metavar='DAY', help=f'one of {", ".join(DAYS)}; default: all at once')
    args = parser.parse_args()
    for name in args.days:
        if name not in DAYS:
            parser.error(f'there is no day {name}; there are {", ".join(DAYS)}')
    for name in (PROGRAM, 'libonewrite.so'):
        if not (pathlib.Path(args.built) / name).exists():
            sys.exit(f'{args.built}/{name} is missing: cargo build --release -p onewrite -p onewrite-replicate')
    top, failed = tempfile.mkdtemp(prefix='hard-days-'), False
    print(f'seed {args.seed}, {args.seconds} s each, in {top}', flush=True)

    def live(day):
        try:
            said = getattr(day, day.name)()
            return f'{len(day.acknowledged):,} acknowledged, {day.refused:,} refused, the slowest {day.worst:.1f} s, none lost; {said}'
        finally:
            day.close()

    days = [Day(args, name, top) for name in args.days or DAYS]
    with concurrent.futures.ThreadPoolExecutor(len(days)) as pool:
        lives = {pool.submit(live, day): day.name for day in days}
        for done in concurrent.futures.as_completed(lives):
            try:
                print(f'{lives[done]}: {done.result()}', flush=True)
            except Skipped as why:
                print(f'{lives[done]}: skipped, {why}', flush=True)
            except Exception as e:  # Any other day goes on.
                failed = True
                print(f'{lives[done]}: FAILED: {type(e).__name__}: {e}', flush=True)
    if not (args.keep or failed):
        shutil.rmtree(top, ignore_errors=True)
    sys.exit(failed)


if __name__ == '__main__':
    main()
