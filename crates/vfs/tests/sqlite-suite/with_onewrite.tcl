# Runs a script of SQLite's testfixture with onewrite as the default VFS; ONEWRITE_TEST_LIBRARY is libonewrite.so.
# testfixture with_onewrite.tcl SCRIPT [ARGUMENT...]
proc onewrite_load {} {
  sqlite3_plain onewrite_loader :memory:
  onewrite_loader enable_load_extension 1
  onewrite_loader eval {SELECT load_extension($::env(ONEWRITE_TEST_LIBRARY), 'sqlite3_onewrite_default_init')}
  onewrite_loader close
}
interp alias {} sqlite3_plain {} sqlite3
# The tests shut SQLite down and start it again, which makes its own VFS the default.
rename sqlite3_initialize sqlite3_initialize_plain
proc sqlite3_initialize {args} {
  set code [uplevel sqlite3_initialize_plain $args]
  # The tests put a procedure of their own in the place of the command sqlite3.
  rename sqlite3_plain {}
  interp alias {} sqlite3_plain {} sqlite3
  onewrite_load
  return $code
}
onewrite_load
set argv [lassign $argv argv0]
source $argv0
