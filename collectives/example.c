// Sums an array over all ranks while the program could compute, and prints the result. Build and run:
//   mpicc example.c $(pkg-config --cflags --libs annulus_collectives) -o example && mpirun -np 4 ./example
#include <annulus_collectives.h>
#include <stdio.h>
#include <stdlib.h>

static void check(annulus_group* group, annulus_status status) {
  if (status == ANNULUS_OK) return;
  fprintf(stderr, "example: %s\n", annulus_error_text(group));
  exit(EXIT_FAILURE);
}

int main(void) {
  enum { COUNT = 1000000 };
  const annulus_options options = {.timeout_seconds = 60};
  annulus_group* group;
  const annulus_status started = annulus_group_start(NULL, &options, &group);
  check(group, started);

  // Memory of the ranks of a node: operations on it copy nothing.
  void* memory;
  check(group, annulus_allocate(group, COUNT * sizeof(float), &memory));
  float* values = memory;
  for (size_t i = 0; i < COUNT; ++i) values[i] = (float)annulus_rank(group);

  annulus_work work;
  check(group, annulus_all_reduce(group, values, values, COUNT, ANNULUS_FLOAT32, ANNULUS_AVERAGE, NULL, &work));
  // Compute here.
  check(group, annulus_wait(group, work, 0));

  if (annulus_rank(group) == 0)
    printf("average of %d ranks: %g; %s\n", annulus_size(group), values[COUNT - 1], annulus_description(group));
  check(group, annulus_free(group, memory));
  return annulus_group_finish(group) == ANNULUS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
