# Prints the files of SQLite's permutation veryquick.
# testfixture names.tcl TESTDIR
set testdir [lindex $argv 0]
rename exit exit_plain
proc exit {args} {
  set options $::testspec(veryquick)
  foreach name [lindex $options [lsearch $options -files]+1] {puts "FILE [file tail $name]"}
  exit_plain
}
set argv0 $testdir/permutations.test
set argv [list veryquick none]
source $testdir/permutations.test
