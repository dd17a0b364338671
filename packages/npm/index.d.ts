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
