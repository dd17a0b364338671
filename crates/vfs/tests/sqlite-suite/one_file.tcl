# Runs a file of SQLite's permutation veryquick.
# testfixture one_file.tcl TESTDIR FILE
lassign $argv testdir file
set argv [list veryquick $file]
set argv0 $testdir/permutations.test
source $argv0
