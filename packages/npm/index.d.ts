/** The file that SQLite loads. */
export function loadablePath(): string;

export interface LoadOptions {
  /** Every database that names no VFS is opened through onewrite from now on. */
  default?: boolean;
}

/**
 * Loads the library into the SQLite behind an open connection of better-sqlite3, node:sqlite (`allowExtension: true`) or
 * sqlite3 (which answers with a promise).
 */
export function load(db: { loadExtension: Function }, options?: LoadOptions): void | Promise<void>;

/** onewrite's settings, as URI parameters. */
export type Settings = Record<string, string | number>;

/** The URI that opens a file through onewrite, for bindings that open URIs. */
export function uri(name: string, settings?: Settings): string;

/** What went wrong in onewrite's last failed call on this thread; null if the last error was not onewrite's. */
export function lastError(Database: new (name: string) => any): string | null;

/** Runs `action`, and adds onewrite's reason to the message of the error that it ends with. */
export function explain<T>(Database: new (name: string) => any, action: () => T): T;

/**
 * Opens a database through onewrite with the class of better-sqlite3, whose default VFS onewrite becomes, or `DatabaseSync` of
 * node:sqlite. The error of an open that fails has onewrite's reason.
 */
export function open<D>(Database: new (name: string, options?: any) => D, name: string, options?: object, settings?: Settings): D;
