// A rank stops in a job of several: fault (kill|freeze|absent|allocate) TIMEOUT RANKS_PER_NODE. The others report how
// their operation ended.
#include <annulus_collectives.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char** argv) {
  if (argc != 4) return EXIT_FAILURE;
  const char* const kind = argv[1];
  const annulus_options options = {.timeout_seconds = atof(argv[2]), .ranks_per_node = atoi(argv[3])};
  annulus_group* group;
  if (annulus_group_start(NULL, &options, &group) != ANNULUS_OK) return EXIT_FAILURE;
  static float values[100000];
  annulus_work work = 0;
  for (int i = 0; i < 10; ++i)
    if (annulus_all_reduce(group, values, values, 100000, ANNULUS_FLOAT32, ANNULUS_SUM, NULL, &work) != ANNULUS_OK ||
        annulus_wait(group, work, 0) != ANNULUS_OK)
      return EXIT_FAILURE;
  if (annulus_rank(group) == 1) {
    printf("stopped %d\n", (int)getpid());
    fflush(stdout);
    sleep(1);  // the others wait by then, and mpirun has read the line
    if (strcmp(kind, "kill") == 0) raise(SIGKILL);
    if (strcmp(kind, "freeze") == 0) raise(SIGSTOP);
    for (;;) pause();
  }
  const double begun = now();
  annulus_status status;
  void* memory;
  if (strcmp(kind, "allocate") == 0) {
    status = annulus_allocate(group, 1000, &memory);
  } else {
    annulus_all_reduce(group, values, values, 100000, ANNULUS_FLOAT32, ANNULUS_SUM, NULL, &work);
    status = annulus_wait(group, work, 0);
  }
  printf("rank %d: status %d after %.1f s: %s\n", annulus_rank(group), (int)status, now() - begun,
         annulus_error_text(group));
  fflush(stdout);
  annulus_group_finish(group);
  _exit(EXIT_SUCCESS);
}
