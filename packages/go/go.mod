module onewrite

go 1.21
