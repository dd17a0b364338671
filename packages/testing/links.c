/* A program that takes onewrite from its static library, to see that it links. Nothing runs it. */
int onewrite_register_api(const void *api, int make_default);
const char *onewrite_version(void);
const char *onewrite_last_error(void);
int sqlite3_onewrite_init(void *db, char **error, const void *api);
int sqlite3_onewrite_default_init(void *db, char **error, const void *api);

int main(int arguments, char **values){
  (void)values;
  switch( arguments ){
    case 0: return onewrite_register_api(0, 0);
    case 1: return sqlite3_onewrite_init(0, 0, 0);
    case 2: return sqlite3_onewrite_default_init(0, 0, 0);
    default: return onewrite_version()==onewrite_last_error();
  }
}
